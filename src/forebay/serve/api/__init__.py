"""The routes for programs: jobs, work, dead letters, queues, schedules, logs and figures, as JSON."""
