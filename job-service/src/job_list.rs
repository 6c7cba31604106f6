//! Parses the query parameters that select, sort and page the jobs of a partition. Pure.
//!
//! Lists, counts, bulk cancellations and bulk deletions share these parameters.

mod filter;
mod page;
mod selector;

pub use self::page::Page;
pub use self::selector::JobSelector;
