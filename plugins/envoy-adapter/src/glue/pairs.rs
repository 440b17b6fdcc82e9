//! All headers of a message, without the SDK's copies.

use crate::headers::in_map;
use bytes::Bytes;
use proxy_wasm::types::MapType;

#[allow(unsafe_code, reason = "proxy-wasm's own interface")]
#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
}

/// The names and values; none where there is no such message now.
pub(super) fn pairs(map: MapType) -> impl Iterator<Item = (Bytes, Bytes)> {
    in_map(Bytes::from(serialised(map)))
}

#[allow(unsafe_code, reason = "proxy-wasm's own interface")]
fn serialised(map: MapType) -> Vec<u8> {
    let (mut data, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: both places are valid for the one value that is written to each.
    let status = unsafe { proxy_get_header_map_pairs(map as u32, &raw mut data, &raw mut size) };
    if status != 0 || data.is_null() {
        return Vec::new();
    }
    // SAFETY: Envoy had this memory allocated by the SDK, as a boxed slice of `size` bytes that it has
    // filled since, and leaves it to us.
    unsafe { Vec::from_raw_parts(data, size, size) }
}
