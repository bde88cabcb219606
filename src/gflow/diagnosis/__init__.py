"""Diagnosis: the cause of a job's end, found in its log and its record."""
