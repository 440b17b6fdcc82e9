//! Where a request says whom it belongs to, as the operator configures it.

/// Where session, parent and end of session are read from. The first that is present wins: the
/// harnesses' headers in order, then cookies, then the body.
#[derive(Clone, Debug)]
pub struct Session {
    /// header names, grouped by who sends them
    pub harnesses: Vec<Harness>,
    /// headers that say `true` or `1` on the last request of a session
    pub final_headers: Vec<String>,
    /// cookie names
    pub cookies: Vec<String>,
    /// JSON pointers into the body
    pub body: Vec<String>,
    /// of all header names above, those that engines see; none: all of them
    pub forward: Option<Vec<String>>,
}

/// The headers of one client program. The parent is looked for only in the headers of the harness
/// that gave the session: mixing the ids of two programs would invent a family.
#[derive(Clone, Debug, Default)]
pub struct Harness {
    /// names of the session's id, in order
    pub session: Vec<String>,
    /// names of the parent's id, in order
    pub parent: Vec<String>,
}

impl Session {
    /// One ordered list each, in place of the default harnesses.
    #[must_use]
    pub fn lists(headers: Vec<String>, parent_headers: Vec<String>) -> Session {
        Session {
            harnesses: vec![Harness {
                session: headers,
                parent: parent_headers,
            }],
            ..Session::default()
        }
    }
}

/// Dynamo's names override every program's own.
const CANONICAL_PARENT: &str = "x-dynamo-parent-session-id";

impl Default for Session {
    fn default() -> Self {
        let harness = |session: &[&str], parent: &[&str]| Harness {
            session: session.iter().map(|&name| name.to_owned()).collect(),
            parent: std::iter::once(CANONICAL_PARENT)
                .chain(parent.iter().copied())
                .map(str::to_owned)
                .collect(),
        };
        Session {
            harnesses: vec![
                harness(&["x-dynamo-session-id"], &[]),
                // Claude Code: a subagent is a session of its own, its parent another agent or the
                // session that it runs in; a root turn has no parent.
                harness(
                    &["x-claude-code-agent-id"],
                    &["x-claude-code-parent-agent-id", "x-claude-code-session-id"],
                ),
                harness(&["x-claude-code-session-id"], &[]),
                // Codex, newer and older
                harness(&["thread-id", "session-id"], &["x-codex-parent-thread-id"]),
                harness(
                    &["x-deepseek-harness-session-id"],
                    &["x-deepseek-harness-parent-session-id"],
                ),
                // OpenCode, and what most others send
                harness(&["x-session-id"], &["x-parent-session-id"]),
                harness(&["x-correlation-id"], &["x-parent-session-id"]),
            ],
            final_headers: vec!["x-dynamo-session-final".to_owned()],
            cookies: Vec::new(),
            body: vec!["/nvext/session_control/session_id".to_owned()],
            forward: None,
        }
    }
}
