//! How an engine is told the data-parallel rank. A client's own copy never wins.

use crate::json::{self, Shape};
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};

/// Taken from every client's request, whatever the dialect.
pub const RANK_HEADER: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// How an engine is told the data-parallel rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// header `X-data-parallel-rank`
    Vllm,
    /// body field `routed_dp_rank`
    Sglang,
    /// body field `data_parallel_rank`
    Atom,
    /// not at all
    #[default]
    OpenAi,
}

impl Dialect {
    /// The header that carries the rank.
    pub fn header(self, rank: u32) -> Option<(HeaderName, HeaderValue)> {
        match self {
            Dialect::Vllm => Some((RANK_HEADER, HeaderValue::from(rank))),
            Dialect::Sglang | Dialect::Atom | Dialect::OpenAi => None,
        }
    }

    /// The field of the JSON body that carries the rank.
    fn field(self) -> Option<&'static str> {
        match self {
            Dialect::Sglang => Some("routed_dp_rank"),
            Dialect::Atom => Some("data_parallel_rank"),
            Dialect::Vllm | Dialect::OpenAi => None,
        }
    }

    /// The body with the rank in it; none: it stays as it is.
    pub fn body(self, body: &Bytes, shape: Shape, rank: u32) -> Option<Bytes> {
        let field = self.field()?;
        if shape.rank_fields {
            let text = std::str::from_utf8(body).ok()?;
            return json::with_field(text, field, rank).map(Bytes::from);
        }
        let end = memchr::memrchr(b'}', body)?;
        let mut out = BytesMut::with_capacity(body.len() + field.len() + 16);
        out.put_slice(body.get(..end)?);
        if shape.fields > 0 {
            out.put_u8(b',');
        }
        out.put_slice(format!("\"{field}\":{rank}}}").as_bytes());
        Some(out.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Scan;

    fn sent(dialect: Dialect, body: &'static str) -> String {
        let scan = Scan::of(body).unwrap();
        let body = Bytes::from_static(body.as_bytes());
        let sent = dialect.body(&body, scan.shape, 3).unwrap_or(body);
        String::from_utf8(sent.to_vec()).unwrap()
    }

    #[test]
    fn the_rank_is_put_at_the_end_of_the_body() {
        assert_eq!(
            sent(Dialect::Sglang, r#"{"model":"m"} "#),
            r#"{"model":"m","routed_dp_rank":3}"#
        );
        assert_eq!(sent(Dialect::Atom, "{ }"), r#"{ "data_parallel_rank":3}"#);
        assert_eq!(sent(Dialect::Vllm, "{}"), "{}");
        assert_eq!(sent(Dialect::OpenAi, "{}"), "{}");
    }

    #[test]
    fn a_clients_copy_is_replaced_however_it_is_spelt() {
        assert_eq!(
            sent(
                Dialect::Sglang,
                r#"{"z":1,"routed_dp_rank":9, "a":[1 , 2],"routed\u005fdp_rank":8,"data_parallel_rank":7}"#
            ),
            r#"{"z":1,"a":[1 , 2],"routed_dp_rank":3}"#
        );
    }

    #[test]
    fn a_field_of_the_same_name_further_down_is_the_clients() {
        assert_eq!(
            sent(Dialect::Atom, r#"{"x":{"data_parallel_rank":9}}"#),
            r#"{"x":{"data_parallel_rank":9},"data_parallel_rank":3}"#
        );
    }
}
