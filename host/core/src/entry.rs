//! What the table keeps of one key: its claim, what may come back, and the session's previous prompt.

use crate::image::{Image, put_u32, put_u64};
use crate::prompt::Prompt;
use crate::types::Target;

/// A claim of a key on a target.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) target: Target,
    /// requests in flight under it
    pub(crate) leases: u32,
    /// tells this claim from every other one the key ever had
    pub(crate) revision: u64,
    /// an engine has accepted a request under it
    pub(crate) confirmed: bool,
    /// counts as a session of its target
    pub(crate) session: bool,
}

impl Held {
    /// A claim that nobody has yet.
    pub(crate) fn new(target: Target, revision: u64, session: bool) -> Held {
        Held {
            target,
            leases: 0,
            revision,
            confirmed: false,
            session,
        }
    }
}

impl Held {
    fn write(&self, image: &mut Vec<u8>) {
        put_u32(image, self.target);
        put_u32(image, self.leases);
        put_u64(image, self.revision);
        image.push(u8::from(self.confirmed) | u8::from(self.session) << 1);
    }

    fn read(image: &mut Image<'_>) -> Option<Held> {
        let (target, leases, revision) = (image.u32()?, image.u32()?, image.u64()?);
        let flags = image.u8()?;
        Some(Held {
            target,
            leases,
            revision,
            confirmed: flags & 1 != 0,
            session: flags & 2 != 0,
        })
    }
}

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// everything it did is undone
    RolledBack,
    /// its bindings begin to be idle
    Normal,
    /// the bindings that it used are dropped
    BrokenOff,
}

/// What an end comes to for the claim of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// the request was under another one
    Untouched,
    /// it stands
    Stays,
    /// it failed, and the one that it had replaced, on another target, is back
    Returns {
        /// the target of the one that failed
        from: Target,
    },
    /// nobody claims the key any more
    Gone,
}

/// What requests in flight may yet take back. None of it outlives them.
#[derive(Debug, Default)]
struct Pending {
    /// The claim that an unconfirmed one replaced.
    before: Option<Held>,
    /// The prompt of the request that was sent last, and the number of that sending.
    sent: Option<(u64, Prompt)>,
}

/// See the module. A million of them lie in a table: what lasts is packed, what passes is boxed.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) held: Held,
    pending: Option<Box<Pending>>,
    /// The prompt of the last request that an engine accepted.
    accepted: Option<Prompt>,
    /// without a lease: when the binding is gone; else: how long the leases are believed
    pub(crate) until: u64,
    /// its neighbours among the idle ones
    pub(crate) older: u32,
    pub(crate) newer: u32,
}

impl Entry {
    /// Of no neighbour, and not idle.
    pub(crate) fn new(key: u64, held: Held, nobody: u32) -> Entry {
        Entry {
            key,
            held,
            pending: None,
            accepted: None,
            until: 0,
            older: nobody,
            newer: nobody,
        }
    }

    /// Is the claim over? A lease keeps it.
    pub(crate) fn expired(&self, now: u64) -> bool {
        self.held.leases == 0 && now >= self.until
    }

    /// The session's previous prompt, as far as is known now.
    pub(crate) fn prompt(&self) -> Option<&Prompt> {
        let sent = self.pending.as_ref().and_then(|p| p.sent.as_ref());
        (sent.map(|(_, prompt)| prompt)).or(self.accepted.as_ref())
    }

    /// Whether there is nothing left for a confirmation to change: later claims keep that.
    pub(crate) fn settled(&self) -> bool {
        let before = self.pending.as_ref().and_then(|p| p.before.as_ref());
        self.held.confirmed && before.is_none()
    }

    /// Whether the last prompt is this one, and no other is on its way: then sending it changes nothing,
    /// whatever becomes of it.
    pub(crate) fn has_run(&self, prompt: &Prompt) -> bool {
        let sent = self.pending.as_ref().and_then(|p| p.sent.as_ref());
        sent.is_none() && self.accepted.as_ref() == Some(prompt)
    }

    /// Puts another claim into the place of this one, and returns the target that loses it. The old
    /// one waits for the new one's failure if an engine stands behind it, or may yet do so.
    pub(crate) fn replace(&mut self, new: Held) -> Target {
        let old = std::mem::replace(&mut self.held, new);
        let from = old.target;
        let before = &mut self.pending.get_or_insert_default().before;
        if old.confirmed || before.is_none() {
            *before = Some(old);
        }
        from
    }

    /// An engine accepted a request under the claim of this revision.
    pub(crate) fn confirm(&mut self, revision: u64) {
        if self.held.revision == revision {
            self.held.confirmed = true;
            self.change(|pending| pending.before = None);
        } else {
            self.change(|pending| {
                if let Some(before) = &mut pending.before
                    && before.revision == revision
                {
                    before.confirmed = true;
                }
            });
        }
    }

    /// A request under the claim of this revision ended.
    pub(crate) fn end(&mut self, revision: u64, end: End) -> After {
        if self.held.revision != revision {
            self.change(|pending| pending.end_before(revision, end));
            return After::Untouched;
        }
        self.held.leases = self.held.leases.saturating_sub(1);
        let undone = end == End::RolledBack && !self.held.confirmed && self.held.leases == 0;
        if !undone && end != End::BrokenOff {
            return After::Stays;
        }
        let mut before = None;
        if undone {
            self.change(|pending| before = pending.before.take());
        }
        match before {
            Some(before) => {
                let failed = std::mem::replace(&mut self.held, before);
                After::Returns {
                    from: failed.target,
                }
            }
            None => After::Gone,
        }
    }

    /// A prompt is on its way.
    pub(crate) fn send(&mut self, number: u64, prompt: Prompt) {
        self.pending.get_or_insert_default().sent = Some((number, prompt));
    }

    /// An engine accepted the prompt of this sending, if it is the last one.
    pub(crate) fn accept(&mut self, number: u64) {
        if let Some(prompt) = self.unsend(number) {
            self.accepted = Some(prompt);
        }
    }

    /// An engine has accepted this prompt.
    pub(crate) fn ran(&mut self, prompt: Prompt) {
        self.accepted = Some(prompt);
    }

    /// Takes back the prompt of this sending, if it is the last one.
    pub(crate) fn unsend(&mut self, number: u64) -> Option<Prompt> {
        let mut taken = None;
        self.change(|pending| taken = pending.sent.take_if(|(sent, _)| *sent == number));
        taken.map(|(_, prompt)| prompt)
    }

    /// All of it, to be kept elsewhere.
    pub(crate) fn write(&self, image: &mut Vec<u8>) {
        let before = self.pending.as_ref().and_then(|p| p.before.as_ref());
        let sent = self.pending.as_ref().and_then(|p| p.sent.as_ref());
        let parts = u8::from(before.is_some())
            | u8::from(sent.is_some()) << 1
            | u8::from(self.accepted.is_some()) << 2;
        put_u64(image, self.key);
        put_u64(image, self.until);
        image.push(parts);
        self.held.write(image);
        if let Some(before) = before {
            before.write(image);
        }
        if let Some((number, prompt)) = sent {
            put_u64(image, *number);
            prompt.write(image);
        }
        if let Some(prompt) = &self.accepted {
            prompt.write(image);
        }
    }

    /// What [`Entry::write`] wrote.
    pub(crate) fn read(image: &mut Image<'_>, nobody: u32) -> Option<Entry> {
        let (key, until, parts) = (image.u64()?, image.u64()?, image.u8()?);
        let mut entry = Entry::new(key, Held::read(image)?, nobody);
        entry.until = until;
        let mut pending = Pending::default();
        if parts & 1 != 0 {
            pending.before = Some(Held::read(image)?);
        }
        if parts & 2 != 0 {
            pending.sent = Some((image.u64()?, Prompt::read(image)?));
        }
        if parts & 3 != 0 {
            entry.pending = Some(Box::new(pending));
        }
        if parts & 4 != 0 {
            entry.accepted = Some(Prompt::read(image)?);
        }
        Some(entry)
    }

    fn change(&mut self, change: impl FnOnce(&mut Pending)) {
        let Some(pending) = &mut self.pending else {
            return;
        };
        change(pending);
        if pending.before.is_none() && pending.sent.is_none() {
            self.pending = None;
        }
    }
}

impl Pending {
    /// A request under the replaced claim ended: it need not come back if nothing stands behind it.
    fn end_before(&mut self, revision: u64, end: End) {
        let Some(before) = self.before.as_mut().filter(|b| b.revision == revision) else {
            return;
        };
        before.leases = before.leases.saturating_sub(1);
        if end == End::BrokenOff || (!before.confirmed && before.leases == 0) {
            self.before = None;
        }
    }
}
