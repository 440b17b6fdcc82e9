//! The OpenAI wire format, as far as a router and its clients meet it.

mod error;
mod prompt;
mod request;
mod response;

pub(crate) use error::ApiError;
pub(crate) use request::{Api, Call};
pub(crate) use response::{Answer, ModelList};
