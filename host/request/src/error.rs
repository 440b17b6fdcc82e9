use thiserror::Error;

/// The client's fault, for the client: an identity that any guess would give to somebody else. 400.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct BadIdentity(pub String);

/// The operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadSetting {
    /// a header that no request can carry
    #[error("{setting}: {name:?} is not a header name")]
    HeaderName {
        /// where it stands
        setting: &'static str,
        /// as configured
        name: String,
    },
    /// a JSON pointer that does not begin with '/'
    #[error(
        "session.body: {0:?} is not a JSON pointer: it begins with '/', as in \"/metadata/session\""
    )]
    Pointer(String),
}
