//! State as bytes, for hosts that keep it outside of the process: little endian, without names.

/// What is left to be read.
pub(crate) struct Image<'a>(pub(crate) &'a [u8]);

impl Image<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }
}

pub(crate) fn put_u32(image: &mut Vec<u8>, number: u32) {
    image.extend_from_slice(&number.to_le_bytes());
}

pub(crate) fn put_u64(image: &mut Vec<u8>, number: u64) {
    image.extend_from_slice(&number.to_le_bytes());
}
