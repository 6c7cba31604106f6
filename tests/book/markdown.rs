//! A page of Markdown, as its readers and the tests see it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// A page, with what the tests look at. Paths are those from the root of the project.
pub struct Page {
    pub path: PathBuf,
    pub text: String,
    /// The titles of the page and of its sections, in order.
    pub headings: Vec<(HeadingLevel, String)>,
    /// What a link to a section of this page may name.
    pub anchors: BTreeSet<String>,
    /// The targets of links and pictures, with their lines.
    pub links: Vec<(usize, String)>,
    pub examples: Vec<Example>,
}

/// A block of code.
pub struct Example {
    pub line: usize,
    pub language: String,
    pub code: String,
}

impl Page {
    /// Reads a page; `path` begins at `root`.
    pub fn read(root: &Path, path: &Path) -> Self {
        let text = std::fs::read_to_string(root.join(path))
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
        let mut page = Self {
            path: path.to_owned(),
            text: String::new(),
            headings: Vec::new(),
            anchors: BTreeSet::new(),
            links: Vec::new(),
            examples: Vec::new(),
        };
        page.scan(&text);
        page.text = text;
        page
    }

    fn scan(&mut self, text: &str) {
        let (mut heading, mut example) = (None, None::<Example>);
        let mut repeated = BTreeMap::new();
        for (event, place) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = text[..place.start].lines().count() + 1;
            match event {
                Event::Start(Tag::Heading { level, .. }) => heading = Some((level, String::new())),
                Event::End(TagEnd::Heading(_)) => {
                    let Some((level, title)) = heading.take() else {
                        continue;
                    };
                    let times: &mut usize = repeated.entry(anchor(&title)).or_default();
                    self.anchors.insert(match times {
                        0 => anchor(&title),
                        _ => format!("{}-{times}", anchor(&title)),
                    });
                    *times += 1;
                    self.headings.push((level, title));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    self.links.push((line, dest_url.into_string()));
                }
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(language) => language.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    let code = String::new();
                    example = Some(Example {
                        line,
                        language,
                        code,
                    });
                }
                Event::End(TagEnd::CodeBlock) => self.examples.extend(example.take()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(example) = &mut example {
                        example.code.push_str(&text);
                    } else if let Some((_, title)) = &mut heading {
                        title.push_str(&text);
                    }
                }
                _ => (),
            }
        }
    }
}

/// Returns the anchor that code-hosting sites and mdBook give a title.
fn anchor(title: &str) -> String {
    let kept = |letter: &char| {
        letter.is_alphanumeric() || letter.is_whitespace() || matches!(letter, '-' | '_')
    };
    let title = title.to_lowercase();
    let kept = title.trim().chars().filter(kept);
    kept.map(|letter| if letter.is_whitespace() { '-' } else { letter })
        .collect()
}
