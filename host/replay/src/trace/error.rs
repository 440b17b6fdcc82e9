//! Why a trace could not be read.

/// What was wanted, what was found, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {place}: wanted {wanted}, found {found}; {remedy}")]
pub struct TraceError {
    /// The file, as the caller named it.
    pub file: String,
    /// Line, or path of the field.
    pub place: String,
    /// What a good file has there.
    pub wanted: String,
    /// What this one has.
    pub found: String,
    /// What the reader of the message can do.
    pub remedy: String,
}
