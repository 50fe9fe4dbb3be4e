"""The logs of jobs, from which another proxy goes on with them when it becomes the coordinator."""
