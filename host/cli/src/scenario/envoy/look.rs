//! What is outstanding, and where sessions are bound.

use super::stage::Stage;
use crate::scenario::expect::{Difference, Outstanding};
use crate::scenario::file::{Bound, Check};
use anyhow::{Result, bail};
use pointsman_core::Phase;
use serde_json::{Value, json};

impl Stage<'_> {
    /// The first difference.
    pub(super) fn check(&self, check: &Check) -> Result<Result<(), Difference>> {
        if let Some(bound) = &check.bound {
            let difference = self.bound(bound)?;
            if difference.is_err() {
                return Ok(difference);
            }
        }
        check.compare(|name| {
            let said = self.control(&json!({ "look": [self.target(name)?] }))?;
            let count = |what: &str| {
                said.pointer(&format!("/loads/0/{what}"))
                    .and_then(Value::as_u64)
            };
            Ok(Outstanding {
                requests: count("requests"),
                prefill_tokens: count("prefill_tokens"),
                context_tokens: count("context_tokens"),
                sessions: count("sessions"),
            })
        })
    }

    fn bound(&self, bound: &Bound) -> Result<Result<(), Difference>> {
        let id = match (&bound.session, &bound.siblings) {
            (Some(id), None) | (None, Some(id)) => id,
            _ => bail!("`bound` needs `session`, or `siblings` with the parent's id"),
        };
        if bound.target != "none" {
            self.target(&bound.target)?;
        }
        let said = self.control(&json!({ "bound": {
            "session": bound.session, "siblings": bound.siblings,
            "phase": Phase::from(bound.phase).as_str(), "model": bound.model,
        } }))?;
        let target = said.get("bound").and_then(Value::as_u64);
        let name = target.and_then(|target| self.names.get(usize::try_from(target).ok()?));
        let got = name.map_or("none", String::as_str);
        Ok(if got == bound.target {
            Ok(())
        } else {
            let text = |target: &str| format!("{id} bound to {target}");
            Err(Difference::new(text(&bound.target), text(got)))
        })
    }
}
