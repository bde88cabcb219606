"""Wire formats: requests, queries, answers, events, the JSON view of a job, and the terminal protocol."""
