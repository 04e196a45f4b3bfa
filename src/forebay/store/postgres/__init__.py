"""The production store: Postgres, by runs. A run is one row that holds 1 … N alike jobs; see `migrations/`."""
