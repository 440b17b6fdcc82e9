//! The operator's JSON, read into a policy's configuration.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use std::fmt;

/// Why a configuration is refused: where, and what was wanted there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// the option, as a path; empty: the configuration as a whole
    path: String,
    /// what was wanted, what was found
    message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "`{path}`: {}", self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Reads JSON; the empty text means that nothing is set.
pub(crate) fn read<C: DeserializeOwned>(json: &str) -> Result<C, ConfigError> {
    let json = match json.trim() {
        "" => "{}",
        json => json,
    };
    // serde would take a list for an object, its elements for the fields in order.
    if !json.starts_with('{') {
        return Err(ConfigError {
            path: String::new(),
            message: format!(
                "expected a JSON object, found {}",
                json.chars().take(40).collect::<String>()
            ),
        });
    }
    let mut json = serde_json::Deserializer::from_str(json);
    let config = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = match error.path().to_string().as_str() {
            "." => String::new(),
            path => path.to_owned(),
        };
        let message = without_position(&error.inner().to_string());
        ConfigError { path, message }
    })?;
    json.end().map_err(|error| ConfigError {
        path: String::new(),
        message: without_position(&error.to_string()),
    })?;
    Ok(config)
}

/// The operator has written TOML, or one line on a command line: a place in this JSON misleads.
fn without_position(message: &str) -> String {
    match message.rsplit_once(" at line ") {
        Some((message, _)) => message.to_owned(),
        None => message.to_owned(),
    }
}

/// The JSON Schema of a configuration.
pub(crate) fn schema<C: JsonSchema>() -> String {
    let schema = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<C>();
    serde_json::to_string(&schema).unwrap_or_else(|_| "true".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Config {
        /// How many.
        count: u32,
        inner: Inner,
    }

    #[derive(Debug, Default, PartialEq, Deserialize, JsonSchema)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        ratio: f64,
    }

    fn refused(json: &str) -> String {
        read::<Config>(json).unwrap_err().to_string()
    }

    #[test]
    fn the_empty_text_sets_nothing() {
        assert_eq!(read::<Config>(" \n"), Ok(Config::default()));
    }

    #[test]
    fn a_wrong_value_is_named_with_what_was_wanted_and_its_path() {
        let text = refused(r#"{"inner": {"ratio": "much"}}"#);
        assert!(text.starts_with("`inner.ratio`: "), "{text}");
        assert!(text.contains(r#"string "much", expected f64"#), "{text}");
    }

    #[test]
    fn an_unknown_key_is_refused_with_those_that_exist() {
        let text = refused(r#"{"cuont": 1}"#);
        assert!(
            text.contains("unknown field `cuont`, expected `count` or `inner`"),
            "{text}"
        );
    }

    #[test]
    fn only_an_object_is_a_configuration() {
        for json in ["[1]", "[]", "7", "null", "much"] {
            assert!(
                refused(json).starts_with("expected a JSON object, found "),
                "{json}"
            );
        }
    }

    #[test]
    fn text_after_the_object_is_refused() {
        assert!(refused("{} {}").contains("trailing characters"));
    }

    #[test]
    fn doc_comments_reach_the_operator_through_the_schema() {
        assert!(schema::<Config>().contains("How many."));
    }
}
