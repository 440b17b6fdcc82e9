//! The data plane between real sockets: scripted engines on one side, clients on the other.

mod harness;

mod bounds;
mod explain;
mod identity;
mod pass_through;
mod ranks;
mod retries;
mod standing;
mod streams;
