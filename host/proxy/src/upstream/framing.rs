//! Where a body ends, and what of the bytes on a connection belongs to it.

use super::Malformed;
use super::head::headers;
use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::SizeHint;

/// Of a chunk's size and its extensions, which nobody reads.
const LINE_BYTES: usize = 4 << 10;
/// As hyper has it.
const TRAILER_BYTES: usize = 16 << 10;
const TRAILERS: usize = 64;

/// How a body's end is told, and how far it has come.
#[derive(Debug)]
pub(super) enum Framing {
    /// so many bytes are left, at least one
    Length(u64),
    Chunked(Chunked),
    /// all until the connection ends
    Close,
    Over,
}

impl Framing {
    pub(super) fn length(bytes: u64) -> Framing {
        match bytes {
            0 => Framing::Over,
            bytes => Framing::Length(bytes),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self, Framing::Over)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Framing::Length(left) => SizeHint::with_exact(*left),
            Framing::Over => SizeHint::with_exact(0),
            Framing::Chunked(_) | Framing::Close => SizeHint::default(),
        }
    }

    /// Takes all from `buf` that belongs to the body: its data, as one, and the trailers at its end.
    /// What it says before an error comes first.
    pub(super) fn take(
        &mut self,
        buf: &mut BytesMut,
        trailers: &mut Option<Box<HeaderMap>>,
    ) -> Result<Bytes, Malformed> {
        match self {
            Framing::Length(left) => {
                let all = usize::try_from(*left).unwrap_or(usize::MAX);
                let data = buf.split_to(all.min(buf.len())).freeze();
                *self = Framing::length(left.saturating_sub(data.len() as u64));
                Ok(data)
            }
            Framing::Chunked(chunked) => {
                let data = chunked.take(buf)?;
                if chunked.step == Step::End {
                    *trailers = chunked.trailers.take();
                    *self = Framing::Over;
                }
                Ok(data)
            }
            Framing::Close => Ok(buf.split().freeze()),
            Framing::Over => Ok(Bytes::new()),
        }
    }

    /// The connection has ended, after all that was taken.
    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        match self {
            Framing::Length(_) | Framing::Chunked(_) => Err(Malformed::CutShort),
            Framing::Close | Framing::Over => {
                *self = Framing::Over;
                Ok(())
            }
        }
    }
}

/// Chunks (RFC 9112 §7.1), however they are cut.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    step: Step,
    /// bytes of this chunk
    left: u64,
    /// bytes of this line
    line: usize,
    lines: Vec<u8>,
    trailers: Option<Box<HeaderMap>>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// a size's first digit
    #[default]
    Begin,
    Size,
    Extension,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    /// a trailer, or the empty line
    Last,
    LastEnd,
    Trailers,
    End,
    Bad(Malformed),
}

impl Chunked {
    /// Moves the data together, over what frames it.
    fn take(&mut self, buf: &mut BytesMut) -> Result<Bytes, Malformed> {
        let (mut start, mut end, mut at) = (0, 0, 0);
        while self.step != Step::End {
            if self.step == Step::Data {
                let there = buf.len() - at;
                let bytes = usize::try_from(self.left).map_or(there, |left| left.min(there));
                if start == end {
                    (start, end) = (at, at);
                }
                if end < at {
                    buf.copy_within(at..at + bytes, end);
                }
                (at, end) = (at + bytes, end + bytes);
                self.left -= bytes as u64;
                if self.left > 0 {
                    break;
                }
                self.step = Step::DataCr;
            }
            let rest = buf.get(at..).unwrap_or_default();
            if self.step == Step::DataCr && rest.starts_with(b"\r\n") {
                self.step = Step::Begin;
                at += 2;
                continue;
            }
            if self.step == Step::Begin
                && let Some((size, line)) = plain_size(rest)
            {
                (self.step, self.left) = (Step::Data, size);
                at += line;
                continue;
            }
            let Some(&byte) = rest.first() else { break };
            match self.next(byte) {
                Ok(step) => self.step = step,
                Err(why) if start == end => return Err(why),
                Err(why) => {
                    self.step = Step::Bad(why);
                    break;
                }
            }
            at += 1;
        }
        buf.advance(start);
        let data = buf.split_to(end - start).freeze();
        buf.advance(at - end.max(start));
        Ok(data)
    }

    fn next(&mut self, byte: u8) -> Result<Step, Malformed> {
        Ok(match (self.step, byte) {
            (Step::Begin | Step::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                if self.step == Step::Begin {
                    (self.left, self.line) = (0, 0);
                }
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                let more = self.left.checked_mul(16).ok_or(Malformed::ChunkSize)?;
                self.left = more | u64::from(digit);
                self.in_line(Step::Size)?
            }
            (Step::Size | Step::Extension, b'\r') => Step::SizeEnd,
            (Step::Size, b';' | b' ' | b'\t') => self.in_line(Step::Extension)?,
            (Step::Extension, byte) if byte != b'\n' => self.in_line(Step::Extension)?,
            (Step::SizeEnd, b'\n') if self.left == 0 => Step::Last,
            (Step::SizeEnd, b'\n') => Step::Data,
            (Step::DataCr, b'\r') => Step::DataLf,
            (Step::DataLf, b'\n') => Step::Begin,
            (Step::Last, b'\r') => Step::LastEnd,
            (Step::LastEnd, b'\n') => Step::End,
            (Step::Last | Step::Trailers, byte) => self.trailer(byte)?,
            (Step::Bad(why), _) => return Err(why),
            (Step::LastEnd, _) => return Err(Malformed::Trailers),
            (Step::DataCr | Step::DataLf, _) => return Err(Malformed::ChunkEnd),
            _ => return Err(Malformed::ChunkSize),
        })
    }

    fn in_line(&mut self, step: Step) -> Result<Step, Malformed> {
        self.line += 1;
        if self.line > LINE_BYTES {
            return Err(Malformed::ChunkSize);
        }
        Ok(step)
    }

    fn trailer(&mut self, byte: u8) -> Result<Step, Malformed> {
        self.lines.push(byte);
        if self.lines.len() > TRAILER_BYTES {
            return Err(Malformed::Trailers);
        }
        if !self.lines.ends_with(b"\r\n\r\n") {
            return Ok(Step::Trailers);
        }
        let mut lines = [httparse::EMPTY_HEADER; TRAILERS];
        let lines = match httparse::parse_headers(&self.lines, &mut lines) {
            Ok(httparse::Status::Complete((all, lines))) if all == self.lines.len() => lines,
            _ => return Err(Malformed::Trailers),
        };
        let trailers = headers(lines);
        self.trailers = Some(Box::new(trailers.ok_or(Malformed::Trailers)?));
        Ok(Step::End)
    }
}

/// The usual line before a chunk, all there: its size, and the line's bytes. None: step by step.
fn plain_size(rest: &[u8]) -> Option<(u64, usize)> {
    let mut size = 0;
    for (digits, &byte) in rest.iter().enumerate().take(8) {
        if byte == b'\r' {
            let ends = rest.get(digits + 1) == Some(&b'\n');
            return (ends && size > 0).then_some((size, digits + 2));
        }
        size = size * 16 + u64::from(char::from(byte).to_digit(16)?);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The data and whether it came to its end, from pieces as a connection gives them.
    fn decode<'a>(
        mut framing: Framing,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> (Vec<u8>, Option<Malformed>, usize, Option<Box<HeaderMap>>) {
        let mut buf = BytesMut::new();
        let (mut data, mut trailers) = (Vec::new(), None);
        for piece in pieces {
            buf.extend_from_slice(piece);
            loop {
                match framing.take(&mut buf, &mut trailers) {
                    Ok(more) if more.is_empty() => break,
                    Ok(more) => data.extend_from_slice(&more),
                    Err(why) => return (data, Some(why), buf.len(), trailers),
                }
            }
        }
        let error = (!framing.is_over()).then(|| framing.end().err()).flatten();
        (data, error, buf.len(), trailers)
    }

    fn chunked() -> Framing {
        Framing::Chunked(Chunked::default())
    }

    const GOOD: &[u8] =
        b"4\r\nbody\r\n1;x=\"y\"\r\n!\r\n00A \r\n0123456789\r\n0\r\nX-Sum: 7\r\nx-two: 2\r\n\r\nmore";

    #[test]
    fn chunks_are_read_however_they_are_cut() {
        for cut in 0..=GOOD.len() {
            let (a, b) = GOOD.split_at(cut);
            let (data, error, rest, trailers) = decode(chunked(), [a, b]);
            assert_eq!((data.as_slice(), error), (&b"body!0123456789"[..], None));
            assert_eq!(rest, 4, "what follows stays");
            assert_eq!(trailers.unwrap()["x-sum"], "7");
        }
        let (data, error, ..) = decode(chunked(), GOOD.chunks(1));
        assert_eq!((data.as_slice(), error), (&b"body!0123456789"[..], None));
    }

    #[test]
    fn all_that_is_there_becomes_one() {
        let mut buf = BytesMut::from(&b"1\r\na\r\n2\r\nbc\r\n3\r\nd"[..]);
        let mut framing = chunked();
        assert_eq!(framing.take(&mut buf, &mut None).unwrap(), "abcd");
        assert!(buf.is_empty());
        buf.extend_from_slice(b"ef\r\n0\r\n\r\n");
        assert_eq!(framing.take(&mut buf, &mut None).unwrap(), "ef");
        assert!(framing.is_over() && buf.is_empty());
    }

    #[test]
    fn what_is_no_chunk_is_an_error_after_what_came_before() {
        let long = format!("4\r\nbody\r\n1;{}\r\nx", "x".repeat(LINE_BYTES));
        let zeros = format!("4\r\nbody\r\n{}", "0".repeat(LINE_BYTES + 1));
        let trailer = format!("4\r\nbody\r\n0\r\nx: {}", "x".repeat(TRAILER_BYTES));
        for (text, why) in [
            ("4\r\nbody\r\nxyz\r\n", Malformed::ChunkSize),
            ("4\r\nbody\r\nfffffffffffffffff\r\n", Malformed::ChunkSize),
            ("4\r\nbody\r\n\r\n", Malformed::ChunkSize),
            ("4\r\nbody\r\n-1\r\n", Malformed::ChunkSize),
            ("4\r\nbody\r\n0x1\r\n", Malformed::ChunkSize),
            ("4\r\nbody\r\n1\na", Malformed::ChunkSize),
            ("4\r\nbody\r\n1;x\na", Malformed::ChunkSize),
            ("4\r\nbody\r\n1\r\r\n", Malformed::ChunkSize),
            (&long, Malformed::ChunkSize),
            (&zeros, Malformed::ChunkSize),
            ("4\r\nbodyX\r\n", Malformed::ChunkEnd),
            ("4\r\nbody\n0\r\n\r\n", Malformed::ChunkEnd),
            ("4\r\nbody\r\n0\r\n\rX", Malformed::Trailers),
            ("4\r\nbody\r\n0\r\nno trailer\r\n\r\n", Malformed::Trailers),
            (&trailer, Malformed::Trailers),
            ("4\r\nbody\r\n0\r\n", Malformed::CutShort),
            ("4\r\nbody", Malformed::CutShort),
            ("8\r\nbody", Malformed::CutShort),
            ("ffffffffffffffff\r\nbody", Malformed::CutShort),
        ] {
            for pieces in [vec![text.as_bytes()], text.as_bytes().chunks(1).collect()] {
                let (data, error, ..) = decode(chunked(), pieces);
                assert_eq!(
                    (data.as_slice(), error),
                    (&b"body"[..], Some(why)),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_length_ends_where_it_says_and_no_length_with_the_connection() {
        for cut in 0..=6 {
            let (a, b) = b"bodymo".split_at(cut);
            let (data, error, rest, _) = decode(Framing::length(4), [a, b]);
            assert_eq!((data.as_slice(), error, rest), (&b"body"[..], None, 2));
            let (data, error, rest, _) = decode(Framing::Close, [a, b]);
            assert_eq!((data.as_slice(), error, rest), (&b"bodymo"[..], None, 0));
        }
        let (_, error, ..) = decode(Framing::length(5), [&b"body"[..]]);
        assert_eq!(error, Some(Malformed::CutShort));
        assert!(Framing::length(0).is_over());
    }

    /// Pieces of `text`, cut where `cuts` says.
    fn pieces<'a>(text: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        cuts.windows(2)
            .map(|pair| &text[pair[0]..pair[1]])
            .collect()
    }

    proptest! {
        #[test]
        fn any_body_in_any_chunks_and_any_pieces_is_itself(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..20),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let (data, error, rest, _) = decode(chunked(), pieces(&text, &cuts));
            prop_assert_eq!((data, error, rest), (chunks.concat(), None, 0));
        }

        #[test]
        fn no_bytes_panic_and_how_they_are_cut_changes_nothing(
            text in "([0-9a-fA-F]{1,17}|\r\n|[;a-z: \t\r\n]{0,4}|0\r\n){0,30}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let whole = decode(chunked(), [text.as_bytes()]);
            let (data, error, ..) = decode(chunked(), pieces(text.as_bytes(), &cuts));
            prop_assert_eq!((data, error), (whole.0, whole.1));
        }
    }
}
