//! What the program `batchwright` and its tests share: `batchwright chaos`. The program is no
//! library; nothing here is an interface.

#[cfg(feature = "chaos")]
#[doc(hidden)]
pub mod chaos;
