//! How often each cause decided.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Cause;

/// Decisions by cause, in the order of [`Cause::ALL`]. As JSON: `{"fire_fill": 3, …}`, all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts([u64; Cause::ALL.len()]);

impl Counts {
    /// One more.
    pub fn count(&mut self, cause: Cause) {
        for (n, of) in self.0.iter_mut().zip(Cause::ALL) {
            *n += u64::from(of == cause);
        }
    }

    /// Each cause and how often it decided.
    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> {
        Cause::ALL.into_iter().zip(self.0)
    }

    /// How often this one did.
    #[must_use]
    pub fn of(&self, cause: Cause) -> u64 {
        self.iter()
            .filter(|(of, _)| *of == cause)
            .map(|(_, n)| n)
            .sum()
    }
}

fn key(cause: Cause) -> String {
    format!("{}_{}", cause.decision(), cause.as_str())
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(cause, n)| (key(cause), n)))
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let by_key = BTreeMap::<String, u64>::deserialize(deserializer)?;
        Ok(Self(Cause::ALL.map(|cause| {
            by_key.get(&key(cause)).copied().unwrap_or_default()
        })))
    }
}
