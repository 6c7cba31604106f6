//! Bitmaps of subtasks: one bit per subtask, in chunks that are rows of the task table.

/// The number of subtasks for which one row has bits.
pub const CHUNK: u32 = 4096;

/// Returns the chunk with the bit of this subtask, and the number of that bit.
pub fn position(number: u32) -> (i32, usize) {
    let at = number.saturating_sub(1);
    (
        i32::try_from(at / CHUNK).unwrap_or(i32::MAX),
        (at % CHUNK) as usize,
    )
}

/// A bitmap that is as long as its highest bit requires.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bits(pub Vec<u8>);

impl Bits {
    pub fn get(&self, bit: usize) -> bool {
        self.0
            .get(bit / 8)
            .is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
    }

    pub fn set(&mut self, bit: usize) {
        if self.0.len() <= bit / 8 {
            self.0.resize(bit / 8 + 1, 0);
        }
        self.0[bit / 8] |= 1 << (bit % 8);
    }

    pub fn clear(&mut self, bit: usize) {
        if let Some(byte) = self.0.get_mut(bit / 8) {
            *byte &= !(1 << (bit % 8));
        }
    }

    pub fn any(&self) -> bool {
        self.0.iter().any(|byte| *byte != 0)
    }
}
