//! Connections and their limits.
