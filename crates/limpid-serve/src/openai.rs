//! Bodies to requests of the engine.
