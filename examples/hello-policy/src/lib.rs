//! A first policy: new sessions prefer the targets with a label, say `tier = fast`, and among those
//! the one with the fewest requests; from then on a session stays where it began.

use pointsman_sdk::prelude::*;

/// What the operator may set. The comments become the descriptions in the policy's JSON Schema.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// The label to look at.
    pub label: String,
    /// The value of the targets to prefer.
    pub value: String,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            label: "tier".to_owned(),
            value: "fast".to_owned(),
        }
    }
}

/// Why: the index of the word in `REASONS`.
#[repr(u8)]
enum Reason {
    Preferred,
    Other,
    Owner,
    Explicit,
    Nobody,
}

/// The policy: configuration and nothing else. What must survive a swap lives with the host.
#[derive(Debug)]
pub struct HelloPolicy {
    config: Config,
}

impl Policy for HelloPolicy {
    type Config = Config;
    const NAME: &'static str = "hello-policy";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["preferred", "other", "owner", "explicit", "nobody"];

    fn new(config: Config) -> Result<Self, String> {
        if config.label.is_empty() {
            return Err("`label` is empty: name the label to prefer, such as \"tier\"".to_owned());
        }
        Ok(HelloPolicy { config })
    }

    fn keys(&self) -> Keys {
        Keys::SESSION
    }

    fn route(&self, request: &Request, host: &mut impl Host) -> Decision {
        if let Some(target) = request.explicit {
            return Route::to(target, Reason::Explicit as u8).into();
        }
        // Nearly every request of a conversation ends here: no host call at all.
        if let Some(owner) = request.owner.filter(|owner| owner.eligible) {
            return Route::to(owner.target, Reason::Owner as u8).into();
        }
        let fleet = host.columns();
        let best = (fleet.target.iter().zip(&fleet.requests))
            .map(|(&target, &requests)| (!self.prefers(target, host), requests, target))
            .min();
        let Some((other, _, target)) = best else {
            return Decision::Abstain(Reason::Nobody as u8);
        };
        let reason = if other {
            Reason::Other
        } else {
            Reason::Preferred
        };
        let route = Route::to(target, reason as u8);
        // An owner that may not take the request is given up.
        match request.owner {
            Some(_) => route.rebind(Keys::SESSION).into(),
            None => route.bind(Keys::SESSION).into(),
        }
    }
}

impl HelloPolicy {
    fn prefers(&self, target: Target, host: &mut impl Host) -> bool {
        host.describe(target).is_some_and(|endpoint| {
            let mut labels = endpoint.labels.iter();
            labels.any(|(key, value)| *key == self.config.label && *value == self.config.value)
        })
    }
}

pointsman_sdk::export!(HelloPolicy);

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_sdk::testing::{Bench, session};

    fn bench() -> Bench<HelloPolicy> {
        let bench = Bench::new(r#"{"label": "tier", "value": "fast"}"#).unwrap();
        bench.add("a/0", &[("tier", "slow")]);
        bench.add("b/0", &[("tier", "fast")]);
        bench.add("b/1", &[("tier", "fast")]);
        bench
    }

    #[test]
    fn a_new_session_prefers_the_label_and_there_the_fewest_requests() {
        let mut bench = bench();
        bench.load("b/0", 2, 0);
        bench.load("b/1", 1, 0);
        assert_eq!(bench.send(session("s")), "b/1 preferred");
    }

    #[test]
    fn without_a_preferred_target_any_other_serves() {
        let mut bench = bench();
        bench.down("b/0");
        bench.drain("b/1");
        assert_eq!(bench.send(session("s")), "a/0 other");
    }

    #[test]
    fn a_session_stays_where_it_began() {
        let mut bench = bench();
        bench.send(session("s")).finish();
        bench.load("b/0", 50, 0);
        assert_eq!(bench.send(session("s")), "b/0 owner");
    }

    #[test]
    fn a_session_whose_target_is_down_moves() {
        let mut bench = bench();
        bench.send(session("s")).finish();
        bench.down("b/0");
        assert_eq!(bench.send(session("s")), "b/1 preferred");
        assert_eq!(bench.bound("s").as_deref(), Some("b/1"));
    }

    #[test]
    fn the_client_may_name_its_target() {
        assert_eq!(bench().send(session("s").explicit("a/0")), "a/0 explicit");
    }

    #[test]
    fn with_nobody_eligible_the_fallback_decides() {
        let mut bench = bench();
        for name in ["a/0", "b/0", "b/1"] {
            bench.down(name);
        }
        assert_eq!(bench.send(session("s")), "503 nobody fallback");
    }

    #[test]
    fn a_wrong_configuration_says_what_is_wrong() {
        let error = |config| Bench::<HelloPolicy>::new(config).unwrap_err();
        assert!(
            error(r#"{"lable": "tier"}"#)
                .contains("unknown field `lable`, expected `label` or `value`")
        );
        assert!(error(r#"{"label": ""}"#).contains("`label` is empty"));
    }
}
