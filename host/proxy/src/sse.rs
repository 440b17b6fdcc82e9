//! Server-sent events: how many, and errors inside a 200, for engines that fail in mid-stream say so in
//! an event. A light look at the beginning of each line; nothing is held back or changed.

/// Enough of a line to know it: `data: {"error": null`.
const HEAD: usize = 32;

/// Looks at a stream of server-sent events as it passes.
#[derive(Debug, Default)]
pub(crate) struct EventScanner {
    /// the beginning of the present line
    head: [u8; HEAD],
    length: usize,
    failed: bool,
}

impl EventScanner {
    /// Whether an event said that the engine failed.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// The next bytes of the stream. Returns how many lines of data end in them, but for the last one,
    /// `[DONE]`: with the APIs that engines have, an event has one.
    pub(crate) fn pass(&mut self, chunk: &[u8]) -> u32 {
        let mut rest = chunk;
        let mut events = 0;
        while !self.failed && !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
            for (slot, &byte) in (self.head.iter_mut().skip(self.length)).zip(line) {
                *slot = byte;
            }
            self.length = HEAD.min(self.length + line.len());
            if end.is_some() {
                let head = self.head.get(..self.length).unwrap_or_default();
                match Line::of(head) {
                    Line::Data => events += 1,
                    Line::Error => self.failed = true,
                    Line::Other => {}
                }
                self.length = 0;
            }
            rest = after.get(1..).unwrap_or_default();
        }
        events
    }
}

enum Line {
    /// of an event
    Data,
    /// the engine failed
    Error,
    Other,
}

impl Line {
    /// By how it begins.
    fn of(head: &[u8]) -> Line {
        if let Some(event) = head.strip_prefix(b"event:") {
            return match event.trim_ascii() {
                b"error" => Line::Error,
                _ => Line::Other,
            };
        }
        match head.strip_prefix(b"data:").map(<[u8]>::trim_ascii_start) {
            None => Line::Other,
            Some(data) if data.starts_with(b"[DONE]") => Line::Other,
            Some(data) if says_error(data) => Line::Error,
            Some(_) => Line::Data,
        }
    }
}

fn says_error(data: &[u8]) -> bool {
    let error = || {
        let field = data.strip_prefix(b"{")?.trim_ascii_start();
        let value = field.strip_prefix(br#""error""#)?.trim_ascii_start();
        Some(value.strip_prefix(b":")?.trim_ascii_start())
    };
    error().is_some_and(|value| !value.starts_with(b"null"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(chunks: &[&str]) -> bool {
        let mut scanner = EventScanner::default();
        for chunk in chunks {
            scanner.pass(chunk.as_bytes());
        }
        scanner.failed()
    }

    #[test]
    fn events_are_counted_where_they_end_however_they_are_cut() {
        let stream = ": hello\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:{\"b\":2}\r\n\r\nid: 7\n\
                      data: plain\n\ndata: [DONE]\n\n";
        for cut in 0..stream.len() {
            let mut scanner = EventScanner::default();
            let (a, b) = stream.as_bytes().split_at(cut);
            assert_eq!(scanner.pass(a) + scanner.pass(b), 3, "cut at {cut}");
        }
        assert_eq!(EventScanner::default().pass(b"data: half"), 0);
    }

    #[test]
    fn an_error_event_is_seen_however_it_is_cut() {
        let stream =
            "data: {\"x\":1}\n\ndata: {\"error\": {\"message\":\"out of memory\"}}\r\n\r\n";
        for cut in 0..stream.len() {
            assert!(failed(&[&stream[..cut], &stream[cut..]]), "cut at {cut}");
        }
        assert!(failed(&["event: error\n"]));
        assert!(failed(&["event:error\r\n"]));
    }

    #[test]
    fn the_word_error_elsewhere_is_no_error() {
        assert!(!failed(&[
            "data: {\"choices\":[{\"delta\":\"{\\\"error\\\":1}\"}]}\n"
        ]));
        assert!(!failed(&[
            "data: {\"error\":null,\"id\":1}\n",
            "event: message\n",
            ": error\n"
        ]));
    }
}
