//! Why nothing came out, and what to do about it.

use thiserror::Error;

/// What cannot be fused. Functions are named `package:name/interface@version#function`.
#[derive(Debug, Error)]
pub enum Error {
    /// more than the fuser takes on
    #[error("{what}: wanted at most {most}, found {found}: it is too large to be a policy")]
    TooLarge {
        /// what was counted, with its unit
        what: &'static str,
        /// the bound
        most: usize,
        /// the count
        found: usize,
    },
    /// the first input
    #[error("wanted a policy component, found {0}: build one with `pointsman policy build`")]
    NoComponent(String),
    /// the second input
    #[error(
        "wanted an adapter module, found {0}: an adapter is a core module made with wit-bindgen for the world `adapter`, with export_prefix \"fuse:\""
    )]
    NoAdapter(String),
    /// the two sides speak of different types
    #[error(
        "{function}, {place}: the policy has {policy}, the adapter {adapter}: build the policy against the contract of this adapter"
    )]
    Differs {
        /// the function
        function: String,
        /// where in its type
        place: String,
        /// what the policy has there
        policy: String,
        /// what the adapter has there
        adapter: String,
    },
    /// a policy wants what the adapter has not
    #[error(
        "the policy imports {0}, which the adapter does not export: leave the call out, or use an adapter for a newer contract"
    )]
    NoImport(String),
    /// the adapter calls what the policy has not
    #[error(
        "the adapter calls {0}, which the policy does not export: build the policy for the contract of this adapter"
    )]
    NoExport(String),
    /// a policy that expects an operating system
    #[error(
        "the policy imports WASI, which Envoy's policies have not: {0}. Build it without, or have these calls trap (--stub-wasi)"
    )]
    Wasi(String),
    /// a function that may suspend
    #[error(
        "{0} is asynchronous: inside Envoy a call must end before the next begins, so make it an ordinary function"
    )]
    Async(String),
    /// a type with handles
    #[error("{0} is a resource: handles do not cross into Envoy, so pass a record or a number")]
    Resource(String),
    /// strings in another form
    #[error(
        "{function}: the policy's strings are {found}, the adapter's UTF-8: have the policy's compiler use UTF-8"
    )]
    Encoding {
        /// where
        function: String,
        /// `UTF-16` or `latin1+UTF-16`
        found: &'static str,
    },
    /// a feature that is not carried over
    #[error("{0}: a fused policy cannot have it")]
    Unsupported(String),
    /// a defect of the fuser, or an input that its generator gives up on
    #[error(
        "{stage} failed: {message}. If the policy runs in `pointsman serve`, this is a defect of the fuser: please report it with the policy"
    )]
    Internal {
        /// which step
        stage: &'static str,
        /// what happened
        message: String,
    },
}

impl Error {
    /// For what cannot happen with valid input.
    pub(crate) fn internal(stage: &'static str, message: impl ToString) -> Error {
        Error::Internal {
            stage,
            message: message.to_string(),
        }
    }
}
