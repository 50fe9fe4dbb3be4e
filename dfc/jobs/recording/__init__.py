"""What a job did, for people who look at it: its tasks, its log, its figures over time. Bounded, whatever the job does."""
