//! What a request says, without any I/O: shared by the data planes, our own and Envoy.
//!
//! * [`Identifier`]: who it belongs to, from headers, cookies and body.
//! * [`Scan`]: one pass over its JSON body; [`Estimate`]: how long its prompt is, and its chain.
//! * [`Learner`]: how many bytes a token has, as the engines count them.
//! * [`header`], [`body`]: what a policy may read of it.
//! * [`Dialect`]: how an engine is told the data-parallel rank.

#![forbid(unsafe_code)]

mod dialect;
mod error;
mod estimate;
mod facts;
mod identify;
mod json;
mod learn;
mod session;

pub use dialect::{Dialect, RANK_HEADER};
pub use error::{BadIdentity, BadSetting};
pub use estimate::{Estimate, MAX_PROMPT_TOKENS, PromptSize};
pub use facts::{body, header};
pub use identify::{Identifier, Identity, first};
pub use json::{Scan, Shape, is_json, with_field};
pub use learn::{Learner, Ratio};
pub use session::{Harness, Session};
