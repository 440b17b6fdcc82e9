//! Headers as Envoy hands them over: all of a message in one piece, read where they lie. The SDK's own
//! reading copies each name and value, and that is most of what it costs.

use bytes::Bytes;

/// The headers in a serialised map: their number, the lengths of each name and value, then the names and
/// values themselves, each with a zero after it. What does not add up ends them.
pub(crate) fn in_map(map: Bytes) -> impl Iterator<Item = (Bytes, Bytes)> {
    let number = word(&map, 0).unwrap_or(0);
    let mut lengths = 4;
    let mut at = number.saturating_mul(8).saturating_add(lengths);
    (0..number).map_while(move |_| {
        let name = part(&map, &mut at, word(&map, lengths)?)?;
        let value = part(&map, &mut at, word(&map, lengths + 4)?)?;
        lengths += 8;
        Some((name, value))
    })
}

fn word(map: &[u8], at: usize) -> Option<usize> {
    let bytes = map.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*bytes)).ok()
}

fn part(map: &Bytes, at: &mut usize, length: usize) -> Option<Bytes> {
    let end = at.checked_add(length)?;
    let found = (end < map.len()).then(|| map.slice(*at..end));
    *at = end + 1;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut map = u32::try_from(headers.len()).unwrap().to_le_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            map.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        }
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            map.extend(text.as_bytes());
            map.push(0);
        }
        map
    }

    #[test]
    fn a_map_is_read_as_it_was_written_and_a_damaged_one_as_far_as_it_goes() {
        let headers = [(":path", "/v1"), ("empty", ""), ("x-session-id", "s\u{e9}")];
        let whole = map(&headers);
        let found: Vec<_> = in_map(whole.clone().into()).collect();
        let wanted = headers.map(|(name, value)| (Bytes::from(name), Bytes::from(value)));
        assert_eq!(found, wanted);
        for end in 0..whole.len() {
            let cut = Bytes::copy_from_slice(&whole[..end]);
            assert!(in_map(cut).count() < headers.len(), "cut at {end}");
        }
        assert_eq!(in_map(Bytes::from_static(&[255; 64])).count(), 0);
    }
}
