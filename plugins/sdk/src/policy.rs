//! What an author implements.

use crate::{Decision, Description, Event, Host, Keys, Request, Wants, config};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

/// A routing policy. See the crate's example.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a routing policy",
    label = "`pointsman_sdk::Policy` is not implemented for `{Self}`",
    note = "write `impl Policy for {Self}`: its Config, NAME, VERSION, REASONS, and `new`, `keys`, `route`"
)]
pub trait Policy: Sized + 'static {
    /// What the operator may set. Add `#[serde(deny_unknown_fields)]`, so that a misspelt key is
    /// refused instead of ignored, and `#[serde(default)]`, so that `{}` is enough. The doc comments
    /// of its fields become the descriptions in the JSON Schema that operators see.
    type Config: DeserializeOwned + JsonSchema;

    /// Its name in metrics, and the owner of its numbers with the host: keep it across versions.
    const NAME: &'static str;
    /// Its version, for people.
    const VERSION: &'static str;
    /// The word for each reason number, 255 at most. A decision gives the index.
    const REASONS: &'static [&'static str];

    /// Takes the configuration, or says what is impossible about it: which key, what was wanted,
    /// what was found. The text reaches the operator as it is.
    ///
    /// # Errors
    /// When the configuration can be read but makes no sense.
    fn new(config: Self::Config) -> Result<Self, String>;

    /// The identities that it follows or binds. Name as few as the configuration needs: the host
    /// looks up, leases and binds these only.
    fn keys(&self) -> Keys;

    /// Decides one attempt of one request.
    fn route(&self, request: &Request, host: &mut impl Host) -> Decision;

    /// Which events it wants to see; none by default.
    fn wants(&self) -> Wants {
        Wants::empty()
    }

    /// How often [`Event::Tick`] should come, in ms, if it is wanted.
    fn tick_ms(&self) -> Option<u32> {
        None
    }

    /// Sees an event. The calls of [`crate::engine`] are for here, in a tick; they are denied in
    /// [`Policy::route`]. What the host shows here is `pointsman_sdk::observing()`: the whole fleet, of all
    /// phases and models. Events come in Wasm only, not to a natively linked policy.
    fn observe(&self, event: &Event) {
        let _ = event;
    }
}

/// Configures a policy as every host does: the operator's JSON in, the policy and what it says of
/// itself out. The empty text sets nothing.
///
/// # Errors
/// What is wrong with the configuration, for the operator.
pub fn configure<P: Policy>(json: &str) -> Result<(P, Description), String> {
    let config = config::read(json).map_err(|error| error.to_string())?;
    let policy = P::new(config)?;
    let description = Description {
        name: P::NAME.to_owned(),
        version: P::VERSION.to_owned(),
        config_schema: config::schema::<P::Config>(),
        reasons: P::REASONS.iter().map(|&word| word.to_owned()).collect(),
        keys: policy.keys(),
        wants: policy.wants(),
        tick_ms: policy.tick_ms(),
    };
    Ok((policy, description))
}
