//! The server's tests, in one program. Without a socket: bodies to requests (`bodies`, `tokens`), events to answers
//! (`answers`), and what is written about both (`documents`). Over one: who may ask and how (`sockets`), the engine
//! behind it (`work`), requests that change what the model computes (`intervene`), the frames of a run (`timelapse`).
//! Both ways: `local`.

mod answers;
mod bodies;
mod common;
mod directions;
mod documents;
mod intervene;
mod local;
mod reasons;
mod served;
mod sockets;
mod sweeps;
mod timelapse;
mod tokens;
mod units;
mod work;
