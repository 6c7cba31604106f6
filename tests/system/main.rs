//! System stories.
