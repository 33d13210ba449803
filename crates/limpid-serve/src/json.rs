//! JSON as requests write it.
