"""What goes over the socket: requests, answers, and the JSON view of a job."""
