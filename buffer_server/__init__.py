"""The replay service: storage, samplers, rate limiter and the table they make."""
