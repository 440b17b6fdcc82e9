//! The words in which the four built-in policies say why: the same in all of them, so that an
//! operator reads one list, and a swap between them changes no dashboard.

/// Why a request goes where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// new, by load or turn; also a child whose group's target is gone
    Placed,
    /// bound, kept
    Owner,
    /// moved to a strictly better target
    Repinned,
    /// served elsewhere, the binding kept
    Overflow,
    /// its own owner was gone
    Rebound,
    /// followed the children of its parent
    Siblings,
    /// followed its parent
    Parent,
    /// the guard refused the group
    Guarded,
    /// the client chose
    Explicit,
    /// no session id: placed, and nothing recorded
    Unkeyed,
    /// nothing is eligible
    Nobody,
}

impl Reason {
    /// The words, for [`crate::Policy::REASONS`].
    pub const WORDS: &'static [&'static str] = &[
        "placed", "owner", "repinned", "overflow", "rebound", "siblings", "parent", "guarded",
        "explicit", "unkeyed", "nobody",
    ];
}

impl From<Reason> for u8 {
    fn from(reason: Reason) -> u8 {
        reason as u8
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn the_last_reason_has_the_last_word() {
        assert_eq!(
            Reason::WORDS.len(),
            usize::from(u8::from(Reason::Nobody)) + 1
        );
        assert_eq!(Reason::WORDS.last(), Some(&"nobody"));
    }
}
