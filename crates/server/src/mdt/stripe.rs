//! Layouts.
/// OST objects of a layout EA.
pub fn objects(_lov: &[u8]) -> Vec<(u32, u64)> {
    Vec::new()
}
