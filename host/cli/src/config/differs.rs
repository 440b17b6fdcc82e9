//! What a reload does not change.

use super::Config;
use serde_json::Value;

/// What a reload makes true while requests flow.
const RELOADED: [&str; 5] = [
    "pool",
    "grant",
    "policy.use",
    "policy.config",
    "policy.sha256",
];

impl Config {
    /// The settings that differ from `other`, by their names in the file, without those that a reload
    /// changes.
    pub fn differs(&self, other: &Config) -> Vec<String> {
        let mut names = Vec::new();
        let value = |config: &Config| serde_json::to_value(config).unwrap_or_default();
        compare("", &value(self), &value(other), &mut names);
        names
    }

    /// Whether the same policy is wanted, with the same configuration.
    pub fn same_policy(&self, other: &Config) -> bool {
        let (a, b) = (&self.policy, &other.policy);
        (&a.r#use, &a.sha256, &a.config) == (&b.r#use, &b.sha256, &b.config)
    }
}

fn compare(name: &str, a: &Value, b: &Value, names: &mut Vec<String>) {
    if a == b || RELOADED.contains(&name) {
        return;
    }
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, of_a) in a {
                let name = match name {
                    "" => key.clone(),
                    section => format!("{section}.{key}"),
                };
                compare(&name, of_a, b.get(key).unwrap_or(&Value::Null), names);
            }
        }
        _ => names.push(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const POOL: &str =
        "[[pool]]\nname = \"p\"\nendpoints = [{ name = \"a\", url = \"http://h\" }]\n";

    fn config(text: &str) -> Config {
        Config::parse(text, PathBuf::new()).unwrap()
    }

    #[test]
    fn what_needs_a_restart_is_named_as_in_the_file_and_the_rest_is_not() {
        let one = config(POOL);
        let two = config(&format!(
            "[listen]\nthreads = 3\n[admin]\ntoken_file = \"t\"\n[limits]\nclient = \"9s\"\n\
             [policy]\nuse = \"least-tokens\"\nsha256 = \"00\"\ntime_limit_ms = 7\n\
             config = {{ x = 1 }}\n[bindings]\nttl = \"2h\"\n{}",
            POOL.replace("http://h", "http://other")
        ));
        let wanted = [
            "listen.threads",
            "admin.token_file",
            "policy.time_limit_ms",
            "bindings.ttl",
            "limits.client",
        ];
        assert_eq!(one.differs(&two), wanted);
        assert_eq!(two.differs(&one), wanted);
        assert!(!one.same_policy(&two));
    }

    #[test]
    fn drivers_and_grants_come_with_a_reload() {
        let driven = format!(
            "{POOL}driver = {{ kind = \"null\" }}\n[[grant]]\npolicy = \"p\"\nengines = [\"a\"]\n"
        );
        assert_eq!(config(POOL).differs(&config(&driven)), [""; 0]);
    }

    #[test]
    fn a_default_that_is_written_out_is_the_same() {
        let said = config(&format!(
            "[listen]\nthreads = 0\n[policy]\nuse = \"session-affinity\"\ntime_limit_ms = 10\n\
             [bindings]\nttl = \"60m\"\n{POOL}"
        ));
        assert_eq!(config(POOL).differs(&said), [""; 0]);
        assert!(config(POOL).same_policy(&said));
    }
}
