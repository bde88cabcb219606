"""How things look in a terminal: tables, durations, the columns of gqueue."""
