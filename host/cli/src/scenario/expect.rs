//! What a step must come to, on whatever host.

use super::file::{Check, Expect, Scenario, Step};
use anyhow::{Context, Result, bail};

/// The first thing that was not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// counts from 1
    pub step: usize,
    pub expected: String,
    pub got: String,
}

impl Difference {
    pub fn new(expected: impl Into<String>, got: impl Into<String>) -> Difference {
        Difference {
            step: 0,
            expected: expected.into(),
            got: got.into(),
        }
    }
}

impl Scenario {
    /// The policy to play it with: the one given, or its own.
    pub fn policy_or<'a>(&'a self, given: Option<&'a str>) -> Result<&'a str> {
        given.or(self.policy.as_deref()).context(
            "no policy: name one on the command line, or with `policy = \"…\"` in the scenario",
        )
    }

    /// Every step in order, up to the first difference.
    pub fn walk(
        &self,
        mut take: impl FnMut(&Step) -> Result<Result<(), Difference>>,
    ) -> Result<Result<(), Difference>> {
        for (step, number) in self.steps.iter().zip(1..) {
            let outcome = take(step).with_context(|| format!("step {number} cannot be played"))?;
            if let Err(difference) = outcome {
                return Ok(Err(Difference {
                    step: number,
                    ..difference
                }));
            }
        }
        Ok(Ok(()))
    }
}

/// What is outstanding on a target; none: nothing is known of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outstanding {
    pub requests: Option<u64>,
    pub prefill_tokens: Option<u64>,
    pub context_tokens: Option<u64>,
    pub sessions: Option<u64>,
}

impl Check {
    /// Whether what is outstanding on its target is as it says; `on` looks there.
    pub fn compare(
        &self,
        on: impl FnOnce(&str) -> Result<Outstanding>,
    ) -> Result<Result<(), Difference>> {
        let wanted = [
            self.requests.map(u64::from),
            self.prefill_tokens,
            self.context_tokens,
            self.sessions.map(u64::from),
        ];
        let Some(name) = &self.target else {
            if wanted.iter().any(Option::is_some) {
                bail!("`check` of a count needs `target`");
            }
            return Ok(Ok(()));
        };
        let got = on(name)?;
        let got = [
            ("requests", got.requests),
            ("prefill_tokens", got.prefill_tokens),
            ("context_tokens", got.context_tokens),
            ("sessions", got.sessions),
        ];
        for (wanted, (what, got)) in wanted.into_iter().zip(got) {
            if let Some(wanted) = wanted
                && got != Some(wanted)
            {
                let text = |n: u64| format!("{what} = {n} on {name}");
                let got = got.map_or_else(|| "nothing".to_owned(), text);
                return Ok(Err(Difference::new(text(wanted), got)));
            }
        }
        Ok(Ok(()))
    }
}

/// What a decision came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    Routed {
        target: String,
        reason: String,
        fallback: bool,
        adopted: bool,
    },
    Refused {
        status: u16,
        message: String,
        reason: Option<String>,
        fallback: bool,
    },
}

impl Expect {
    /// `where_is`: the target of an earlier request.
    pub fn compare(
        &self,
        got: &Got,
        where_is: impl Fn(&str) -> Result<String>,
    ) -> Result<Result<(), Difference>> {
        let (name, reason, fallback, adopted) = match got {
            Got::Refused {
                status,
                message,
                reason,
                fallback,
            } => return Ok(self.refused(*status, message, reason.as_deref(), *fallback)),
            Got::Routed {
                target,
                reason,
                fallback,
                adopted,
            } => (target, reason, *fallback, *adopted),
        };
        let mut wanted: Vec<(bool, String)> = Vec::new();
        if let Some(target) = &self.target {
            wanted.push((target == name, target.clone()));
        }
        if let Some(any) = &self.any {
            wanted.push((any.contains(name), format!("one of {}", any.join(", "))));
        }
        if let Some(other) = &self.same_as {
            let other_name = where_is(other)?;
            wanted.push((other_name == *name, format!("{other_name}, as {other}")));
        }
        if let Some(other) = &self.not_same_as {
            let other_name = where_is(other)?;
            wanted.push((other_name != *name, format!("not {other_name}, as {other}")));
        }
        if let Some(word) = &self.reason {
            wanted.push((word == reason, format!("reason {word}")));
        }
        if let Some(status) = self.reject {
            wanted.push((false, format!("refused with {status}")));
        }
        if let Some(wants) = self.fallback {
            wanted.push((wants == fallback, decided_by(wants).to_owned()));
        }
        if let Some(wants) = self.adopted {
            wanted.push((wants == adopted, format!("adopted = {wants}")));
        }
        Ok(match wanted.into_iter().find(|(as_wanted, _)| !as_wanted) {
            Some((_, wanted)) => Err(Difference::new(wanted, format!("{name} ({reason})"))),
            None => Ok(()),
        })
    }

    fn refused(
        &self,
        status: u16,
        message: &str,
        reason: Option<&str>,
        fallback: bool,
    ) -> Result<(), Difference> {
        let got = || format!("refused with {status}: {message}");
        let routed = self.target.is_some()
            || self.any.is_some()
            || self.same_as.is_some()
            || self.not_same_as.is_some()
            || self.adopted.is_some();
        let Some(wanted) = self.reject.filter(|_| !routed) else {
            return Err(Difference::new("routed", got()));
        };
        if wanted != status {
            return Err(Difference::new(format!("refused with {wanted}"), got()));
        }
        if let Some(word) = &self.reason
            && reason != Some(word)
        {
            let text = |word: &str| format!("reason {word}");
            return Err(Difference::new(text(word), text(reason.unwrap_or("none"))));
        }
        match self.fallback {
            Some(wants) if wants != fallback => {
                Err(Difference::new(decided_by(wants), decided_by(fallback)))
            }
            _ => Ok(()),
        }
    }
}

fn decided_by(fallback: bool) -> &'static str {
    if fallback {
        "decided by the fallback"
    } else {
        "decided by the policy"
    }
}

/// A policy's configuration as it takes it.
pub fn json(config: &toml::Table) -> Result<String> {
    serde_json::to_string(config).context("the configuration has no JSON form")
}
