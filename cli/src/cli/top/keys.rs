//! The keys that a person presses, while a page is shown.
//!
//! What must stay true: the terminal is as before when this is dropped.

use std::io::{self, IsTerminal as _, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::sync::mpsc;

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// The view with this number, from 0.
    View(usize),
    Next,
    Quit,
}

impl Key {
    /// Returns what a byte asks for.
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            b'1' | b'j' => Some(Self::View(0)),
            b'2' | b'p' => Some(Self::View(1)),
            b'3' | b'w' => Some(Self::View(2)),
            b'\t' | b' ' => Some(Self::Next),
            b'q' | b'Q' => Some(Self::Quit),
            _ => None,
        }
    }
}

/// Reads keys as they are pressed, without the line on which they would be shown.
pub struct Keys {
    pressed: mpsc::Receiver<Key>,
    before: Termios,
    is_over: Arc<AtomicBool>,
}

impl Keys {
    /// Begins to read; `None` if standard input is not a terminal, so that nobody presses keys.
    pub fn read() -> Option<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut modes = before.clone();
        // Ctrl-C still ends the program.
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // A read ends after a tenth of a second, so that the thread notices the end.
        modes.special_codes[SpecialCodeIndex::VMIN] = 0;
        modes.special_codes[SpecialCodeIndex::VTIME] = 1;
        tcsetattr(&stdin, OptionalActions::Now, &modes).ok()?;
        let (sender, pressed) = mpsc::channel(16);
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        tokio::task::spawn_blocking(move || {
            let mut bytes = [0; 16];
            while !over.load(Ordering::Relaxed) {
                // Of the sequence that a special key sends, no byte is a key of ours.
                match io::stdin().read(&mut bytes) {
                    // A read of a terminal that is gone does not wait.
                    Ok(0) if tcgetattr(io::stdin()).is_err() => break,
                    Ok(read) if bytes[..read].contains(&0x1b) => {}
                    Ok(read) => {
                        for key in bytes[..read].iter().copied().filter_map(Key::of) {
                            // If there is no room, nobody looks at the page that the key asks for.
                            let _ = sender.try_send(key);
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            // Nobody looks any more.
            let _ = sender.try_send(Key::Quit);
        });
        Some(Self {
            pressed,
            before,
            is_over,
        })
    }

    /// Returns the next key that asks for something. Never returns if there are no more.
    pub async fn next(&mut self) -> Key {
        match self.pressed.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Nowhere is left to say that it failed.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_letters_choose_a_view() {
        assert_eq!(Key::of(b'2'), Some(Key::View(1)));
        assert_eq!(Key::of(b'w'), Some(Key::View(2)));
        assert_eq!(Key::of(b'\t'), Some(Key::Next));
        assert_eq!(Key::of(b'q'), Some(Key::Quit));
        assert_eq!(Key::of(b'x'), None);
    }
}
