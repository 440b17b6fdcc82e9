//! Envoy with a fused policy: its configuration.

mod bootstrap;
mod filter;
mod plugin;
mod process;

pub use bootstrap::Bootstrap;
pub use filter::Filter;
pub use plugin::{plugin, reads_bodies};
pub use process::{Envoy, get};

use serde_json::Value;

/// The name of the filter, and of the resource that brings it.
pub const FILTER: &str = "pointsman";

/// A text as YAML: JSON is YAML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
