//! Answers what breaks the contract: `{"answer": "no-reason"}`.

use pointsman_sdk::prelude::*;

/// Which clause it breaks.
#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "pointsman_sdk::schemars")]
enum Answer {
    /// a target that does not exist
    #[default]
    NoTarget,
    /// a reason that does not exist
    NoReason,
    /// a rejection with a status that is no error
    BadStatus,
    /// a binding of the parent's key
    BindParent,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
struct Config {
    /// which clause it breaks
    answer: Answer,
}

struct BadAnswer(Answer);

impl Policy for BadAnswer {
    type Config = Config;
    const NAME: &'static str = "bad-answer";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(config: Config) -> Result<Self, String> {
        Ok(BadAnswer(config.answer))
    }

    fn keys(&self) -> Keys {
        Keys::SESSION
    }

    fn route(&self, _: &Request, _: &mut impl Host) -> Decision {
        match self.0 {
            Answer::NoTarget => Route::to(Target::MAX, 0).into(),
            Answer::NoReason => Route::to(0, 9).into(),
            Answer::BadStatus => Rejection::with(200, 0).into(),
            Answer::BindParent => Route::to(0, 0).bind(Keys::PARENT).into(),
        }
    }
}

pointsman_sdk::export!(BadAnswer);
