//! A migration that is added or changed must be embedded again.

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
