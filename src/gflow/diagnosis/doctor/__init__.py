"""`gflow doctor`: checks of a machine. Pure: `gflow.client.machine_facts` collects what they judge."""
