"""The Redis store: every verb one atomic script on a Redis or Valkey server. See docs/redis.md."""
