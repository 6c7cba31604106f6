//! The files that a page loads: each under a URL that contains a hash of its content, so that
//! browsers may keep it for ever.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

/// A file that a page loads.
#[derive(Debug)]
pub struct Asset {
    name: &'static str,
    /// The media type.
    pub content_type: &'static str,
    /// The content.
    pub content: &'static [u8],
    url: String,
}

/// The path in front of the URLs of all assets.
const FOLDER: &str = "/assets";

/// The number of bytes of a hash that a URL shows.
const HASH: usize = 8;

static ASSETS: LazyLock<[Asset; 5]> = LazyLock::new(|| {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    [
        Asset::new(
            "page.css",
            "text/css; charset=utf-8",
            include_bytes!("../../assets/page.css"),
        ),
        Asset::new("theme.js", SCRIPT, include_bytes!("../../assets/theme.js")),
        Asset::new("page.js", SCRIPT, include_bytes!("../../assets/page.js")),
        Asset::new(
            "idiomorph.js",
            SCRIPT,
            include_bytes!("../../assets/idiomorph/idiomorph-0.8.0.min.js"),
        ),
        Asset::new(
            "icon.svg",
            "image/svg+xml",
            include_bytes!("../../assets/icon.svg"),
        ),
    ]
});

impl Asset {
    /// Returns the asset with this hash and name; `None` if there is none, for example because it
    /// is of another version.
    pub fn find(hash: &str, name: &str) -> Option<&'static Self> {
        let asset = ASSETS.iter().find(|asset| asset.name == name)?;
        let found = asset.url.strip_prefix(FOLDER)?.strip_prefix('/')?;
        (found.strip_suffix(name)?.strip_suffix('/') == Some(hash)).then_some(asset)
    }

    fn new(name: &'static str, content_type: &'static str, content: &'static [u8]) -> Self {
        let mut beginning = [0; HASH];
        beginning.copy_from_slice(&Sha256::digest(content)[..HASH]);
        let hash = format!("{:016x}", u64::from_be_bytes(beginning));
        Self {
            name,
            content_type,
            content,
            url: format!("{FOLDER}/{hash}/{name}"),
        }
    }
}

/// Returns the URL of an asset, or its bare name if there is none.
pub fn url(name: &'static str) -> &'static str {
    let asset = ASSETS.iter().find(|asset| asset.name == name);
    asset.map_or(name, |asset| &asset.url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asset_is_found_by_its_url_and_by_no_other_hash() {
        for asset in ASSETS.iter() {
            let path = asset.url.strip_prefix("/assets/").unwrap();
            let (hash, name) = path.split_once('/').unwrap();
            assert_eq!(hash.len(), 2 * HASH);
            assert_eq!(Asset::find(hash, name).unwrap().name, name);
            assert_eq!(url(asset.name), asset.url);
            assert!(Asset::find("0000000000000000", name).is_none());
            assert!(Asset::find("", name).is_none());
        }
        assert!(Asset::find("", "page.html").is_none());
    }
}
