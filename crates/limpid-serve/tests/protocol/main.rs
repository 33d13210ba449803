//! OpenAI's protocol without a socket: bodies to requests, events to answers, and what is written about both.

mod answers;
mod bodies;
mod documents;
mod served;
mod tokens;
