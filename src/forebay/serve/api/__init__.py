"""The JSON API: jobs, claims, dead letters, queues, schedules, logs and statistics."""
