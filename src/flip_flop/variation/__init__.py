"""Every way in which a prompt can change: the order of its options, format, demonstrations, typos, paraphrases."""
