//! Counts and durations, as Prometheus reads them.
