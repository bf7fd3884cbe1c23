"""What belongs to an image and moves with it: boxes, masks, keypoints, maps."""
