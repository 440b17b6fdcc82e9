//! Errors inside a 200: engines that fail in mid-stream say so in an event. A light look at the
//! beginning of each line; nothing is held back or changed.

/// Enough of a line to know it: `data: {"error": null`.
const HEAD: usize = 32;

/// Looks at a stream of server-sent events as it passes.
#[derive(Debug, Default)]
pub(crate) struct ErrorScanner {
    /// the beginning of the present line
    head: [u8; HEAD],
    length: usize,
    failed: bool,
}

impl ErrorScanner {
    /// Whether an event said that the engine failed.
    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// The next bytes of the stream.
    pub(crate) fn pass(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !self.failed && !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
            for (slot, &byte) in (self.head.iter_mut().skip(self.length)).zip(line) {
                *slot = byte;
            }
            self.length = HEAD.min(self.length + line.len());
            if end.is_some() {
                let head = self.head.get(..self.length).unwrap_or_default();
                self.failed = says_error(head);
                self.length = 0;
            }
            rest = after.get(1..).unwrap_or_default();
        }
    }
}

fn says_error(line: &[u8]) -> bool {
    if let Some(event) = line.strip_prefix(b"event:") {
        return event.trim_ascii() == b"error";
    }
    let error = || {
        let data = line.strip_prefix(b"data:")?.trim_ascii_start();
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
        let mut scanner = ErrorScanner::default();
        chunks
            .iter()
            .for_each(|chunk| scanner.pass(chunk.as_bytes()));
        scanner.failed()
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
