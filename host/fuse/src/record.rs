//! What a fused module says of its making: a custom section, which no engine reads.

use crate::Error;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload};

/// The section's name.
pub(crate) const SECTION: &str = "pointsman:fused";
/// Of the section, in bytes.
const MOST: usize = 1 << 20;

/// What [`inspect`] finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// SHA-256 of the policy component, in hexadecimal
    pub component: String,
    /// SHA-256 of the adapter, in hexadecimal
    pub adapter: String,
    /// version of the fuser
    pub fuser: String,
    /// what the policy may spend on one call, in instructions; 0 = without end
    pub fuel: u64,
    /// WASI functions that trap
    pub stubs: Vec<String>,
}

/// Reads how a fused module was made.
///
/// # Errors
/// When the bytes are no module, or one that was not fused.
pub fn inspect(fused: &[u8]) -> Result<Inspected, NotFused> {
    if !Parser::is_core_wasm(fused) {
        return Err(NotFused("it is no WebAssembly module".to_owned()));
    }
    for payload in Parser::new(0).parse_all(fused) {
        let payload = payload.map_err(|error| NotFused(error.to_string()))?;
        if let Payload::CustomSection(section) = payload
            && section.name() == SECTION
        {
            if section.data().len() > MOST {
                return Err(NotFused(format!("its section {SECTION:?} is too long")));
            }
            return serde_json::from_slice(section.data())
                .map_err(|error| NotFused(format!("its section {SECTION:?}: {error}")));
        }
    }
    Err(NotFused(format!("it has no section {SECTION:?}")))
}

/// Why a file says nothing.
#[derive(Debug, thiserror::Error)]
#[error("wanted a module made by `pointsman envoy build`: {0}")]
pub struct NotFused(String);

impl Inspected {
    /// The section's contents.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|error| Error::internal("writing the record", error))
    }
}

/// SHA-256 in hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    (Sha256::digest(bytes).iter())
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
